"""Groups of the router's settings: answers, CORS, planner, stored responses, templates."""

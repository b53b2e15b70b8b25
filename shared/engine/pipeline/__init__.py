"""From a schedule to events: steps are launched, collected and reported."""

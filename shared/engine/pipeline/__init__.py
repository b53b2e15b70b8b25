"""From a schedule to events: steps that are launched, finished and told of."""

"""From pieces of answers to what is sent."""

"""`baton run-batch`: a file of requests in OpenAI's batch format, answered line by line."""

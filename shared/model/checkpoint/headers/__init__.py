"""What the headers of a checkpoint's files hold, compared with what the decoder needs."""

"""Other people's servers, small and real."""

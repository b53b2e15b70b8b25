"""What a decoder computes, as records: the decoder, its mixers, feed-forwards and norms."""

"""What a run of the tests costs, in which order it goes, and what it leaves out."""

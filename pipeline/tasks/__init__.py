"""What an evaluation says of a method."""

"""What every project of a user takes from this repository, and the stage that only such a project has."""

"""How the models are run: `eager` calls them as they are, `compiled` replays fixed programs over fixed memory."""

"""The tools that lessons are made with: they show, ask, check, record and build."""

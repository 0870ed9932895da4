"""The former module of TextPipeline; importing its names still works, with a warning."""

"""The former module of TextPipeline: its names can still be imported, with a warning."""

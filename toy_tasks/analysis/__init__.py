"""Analyses of trained models: what each attention head does, and scaling laws."""

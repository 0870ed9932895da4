"""What is measured on trained models: their heads of attention, and scaling laws."""

"""What is trained on: a data set, dealt to clients, resident on the device."""

"""Where is the duck, and where will it be? A vision task with and without memory."""

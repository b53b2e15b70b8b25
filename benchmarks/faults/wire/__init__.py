"""What lies between the processes: proxies that see, hold, cut and damage."""

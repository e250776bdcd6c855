"""The virtual machine tests: kernels, the machine, and what guest scripts ask of the host."""

// Package childprocess starts this binary a second time, as a child for work that may hang in the kernel.
//
// A thread that waits for a file system that does not answer cannot be killed, and a process with such a thread cannot
// end. What is done in a child can be left behind: the service and its successor are free of it. So a child has none
// of what a successor needs. It inherits no descriptor but its end of a socket pair and the log, and no environment
// but what its Program names. It ends with its service, and what it has started ends with it.
package childprocess

// Package group runs several services in one process.
//
// A Group is the services of a process while they run. "microlet group" (see Command) is a process that the supervisor
// starts for a group of the placement. In the single placement the supervisor runs all services as a Group of its own.
//
// Nothing in a process is restarted alone: a service that ends ends the process, and one that hangs is reported to what
// supervises the process.
package group

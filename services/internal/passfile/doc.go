// Package passfile passes open files from podsync to nodeapi over a unix socket (SCM_RIGHTS).
//
// podsync is root and opens what nodeapi may not open. A connection has one request: a line of text. The answer is the
// descriptor, or a gRPC status.
package passfile

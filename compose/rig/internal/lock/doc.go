// Package lock provides a lock file, so that several rigs on one machine can take turns.
//
// One process holds the lock at a time. The lock ends with its holder, even if the holder is killed.
package lock

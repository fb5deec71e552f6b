// Package lock lets several rigs on one machine take turns.
//
// Input: a file's path. Output: a lock that one process has at a time.
// Guarantee: it goes with its holder, also when that is killed.
package lock

// Package cached keeps folders that take long to create, so that each is created once per machine.
//
// The path of a folder names everything that its content depends on. A folder exists completely or not at all. Two
// rigs may request it at once: one waits for the other. An interrupted creation leaves nothing that looks complete.
package cached

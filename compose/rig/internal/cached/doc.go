// Package cached keeps folders that take long to make, so that each is made once on a machine.
//
// Input: the folder's path, which names all that its content depends on, and a function that makes
// the content. Output: the folder. Guarantees: it is there whole or not at all; two rigs may want it
// at once, one waits for the other; a make that is cut off leaves nothing that looks made.
package cached

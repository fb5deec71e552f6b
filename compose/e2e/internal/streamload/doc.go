// Package streamload loads a node with many clients at the same time: who follow logs, who hold sessions, and who stop
// reading.
package streamload

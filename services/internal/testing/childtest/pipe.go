// Package childtest gives tests the socket pair of a child that is no process of its own.
package childtest

import (
	"errors"
	"io"
)

// End is one end of a socket pair.
type End struct {
	*io.PipeReader
	*io.PipeWriter
}

// Close closes both directions.
func (e End) Close() error { return errors.Join(e.PipeReader.Close(), e.PipeWriter.Close()) }

// CloseWrite lets the other end read no more.
func (e End) CloseWrite() error { return e.PipeWriter.Close() }

// Pipe returns the two ends of a socket pair without a buffer, for tests with virtual time.
func Pipe() (parent, child End) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	return End{outR, inW}, End{inR, outW}
}

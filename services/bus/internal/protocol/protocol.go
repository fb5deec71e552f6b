// Package protocol passes on what a client says to the NATS server, after a look at who it says that it is.
//
// The server accepts a CONNECT at any time, and each one changes the identity of the client. So a client may send one,
// first of all, and the caller judges its nkey. To see a second one, this package has to know where each operation
// ends, as the server does: it takes only the spelling of the protocol that NATS's clients use, and ends the connection
// at anything else.
//
// Because it knows each operation, the caller can also have a client wait that says more than it should.
//
// https://docs.nats.io/reference/reference-protocols/nats-protocol
package protocol

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// bufferSize is the longest line, as nats-server has it (MAX_CONTROL_LINE_SIZE).
const bufferSize = 4096

// maxSizeDigits is nats-server's bound for the sizes of messages.
const maxSizeDigits = 9

// Copy passes on a client's side of a connection until it ends. allow judges the nkey of its CONNECT, which is empty if
// the client gives none. pace is called with the size of each operation before it is passed on. An error other than of
// reading or writing is about what the client said, or pace's; nothing of that operation was passed on.
func Copy(to io.Writer, from io.Reader, allow func(nkey string) error, pace func(size int) error) error {
	c := copier{from: bufio.NewReaderSize(from, bufferSize), to: bufio.NewWriterSize(to, bufferSize)}
	op, line, err := c.line()
	if err != nil {
		return err
	}
	if op != "CONNECT" {
		return fmt.Errorf("the first operation is %.16q, want CONNECT", op)
	}
	var options struct {
		NKey string `json:"nkey"` // read as the server reads it
	}
	if err := json.Unmarshal(arguments(op, line), &options); err != nil {
		return fmt.Errorf("CONNECT: %w", err)
	}
	if err := allow(options.NKey); err != nil {
		return err
	}
	for {
		if err := c.pass(op, line, pace); err != nil {
			return err
		}
		if op, line, err = c.line(); err != nil {
			return err
		}
		if op == "CONNECT" {
			return errors.New("a second CONNECT")
		}
	}
}

type copier struct {
	from *bufio.Reader
	to   *bufio.Writer
}

// line returns the next operation's line, which is valid until the next read.
func (c *copier) line() (op string, line []byte, err error) {
	if c.from.Buffered() == 0 {
		if err := c.to.Flush(); err != nil {
			return "", nil, err
		}
	}
	line, err = c.from.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", nil, fmt.Errorf("a line of more than %d bytes", bufferSize)
	}
	if err != nil {
		return "", nil, err
	}
	text, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || bytes.ContainsAny(text, "\r\x00\t") {
		return "", nil, fmt.Errorf("a line that ends otherwise than by CR LF, or has control characters: %.32q", line)
	}
	word, _, _ := bytes.Cut(text, []byte(" "))
	return string(word), line, nil
}

// arguments are what follows the operation in its line.
func arguments(op string, line []byte) []byte {
	return bytes.TrimSpace(line[len(op):])
}

// pass passes on an operation, with its message if it has one.
func (c *copier) pass(op string, line []byte, pace func(size int) error) error {
	size := 0
	var err error
	switch op {
	case "CONNECT", "PING", "PONG", "SUB", "UNSUB":
	case "PUB": // subject, reply if any, size
		size, err = messageSize(arguments(op, line), 2)
	case "HPUB": // the same with the headers' size before the whole
		size, err = messageSize(arguments(op, line), 3)
	default:
		err = errors.New("unknown operation")
	}
	if err != nil {
		return fmt.Errorf("%.16s: %w", op, err)
	}
	if err := pace(len(line) + size); err != nil {
		return err
	}
	if _, err := c.to.Write(line); err != nil || size == 0 && op != "PUB" && op != "HPUB" {
		return err
	}
	_, err = io.CopyN(c.to, c.from, int64(size)+int64(len("\r\n")))
	return err
}

// messageSize returns the size of a message, the last of least arguments or of one more.
func messageSize(args []byte, least int) (int, error) {
	fields := bytes.Split(args, []byte(" "))
	if n := len(fields); n < least || n > least+1 {
		return 0, fmt.Errorf("%d arguments", n)
	}
	for _, f := range fields {
		if len(f) == 0 {
			return 0, errors.New("an empty argument")
		}
	}
	digits := fields[len(fields)-1]
	if len(digits) > maxSizeDigits {
		return 0, fmt.Errorf("size %.16q", digits)
	}
	size := 0
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, fmt.Errorf("size %.16q", digits)
		}
		size = size*10 + int(d-'0')
	}
	return size, nil
}

package childpool

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"
)

// maxMessage bounds a message between a service and a child.
const maxMessage = 1 << 20

// request asks a child for an operation.
type request struct {
	Call
	// Within is how long the operation may take.
	Within time.Duration
}

// answer is the result of the operation, or its progress.
type answer struct {
	// Progress is how much it has done, in a message that comes before its answer.
	Progress *int64 `json:"progress,omitempty"`

	Result json.RawMessage `json:"result,omitempty"`
	// Error is the operation's error, empty if it had none, and Errno the kernel's part of it.
	Error string        `json:"error,omitempty"`
	Errno syscall.Errno `json:"errno,omitempty"`
	// Left says that a thread of the child still waits in the kernel; see Leave.
	Left bool `json:"left,omitempty"`
}

func answerOf(result json.RawMessage, err error) answer {
	a := answer{Result: result}
	if err != nil {
		a.Error = err.Error()
		_ = errors.As(err, &a.Errno) // 0 is none
	}
	return a
}

func (a *answer) err() error {
	if a.Error == "" {
		return nil
	}
	return &childError{text: a.Error, errno: a.Errno}
}

// childError is an error that a child has returned.
type childError struct {
	text  string
	errno syscall.Errno
}

func (e *childError) Error() string { return e.text }

// Unwrap returns the kernel's error, so that errors.Is knows fs.ErrNotExist and similar errors.
func (e *childError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// writeMessage writes the message's length and the message.
func writeMessage(w io.Writer, message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(data) > maxMessage {
		return fmt.Errorf("message of %d bytes: at most %d are allowed", len(data), maxMessage)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

// readMessage reads a message. After the last one it returns io.EOF.
func readMessage(r io.Reader, message any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > maxMessage {
		return fmt.Errorf("message of %d bytes: at most %d are allowed", length, maxMessage)
	}
	data := make([]byte, length)
	if _, err := io.ReadFull(r, data); err != nil {
		return fmt.Errorf("message cut short: %w", err)
	}
	return json.Unmarshal(data, message)
}

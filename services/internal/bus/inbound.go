package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/time/rate"

	"github.com/microlet/microlet/proto/subject"
)

const (
	// maxServerLine is more than any line of the bus has. The longest is INFO.
	maxServerLine = 64 << 10
	// maxHeader is more than the headers of an entry, or of an answer, have.
	maxHeader = 4 << 10
	// maxSizeDigits is that of the size of a message.
	maxSizeDigits = 9
	// inboundRate is how much a client reads in a second, and inboundBurst at once: all pods and their statuses, as their
	// buckets may be. What it has read and not worked on yet waits in its memory. A line counts as lineCost beside its
	// message, and an error of the bus as errorCost: nats.go keeps any number of errors for the log.
	inboundRate  = 64 << 20
	inboundBurst = 512 << 20
	lineCost     = 4 << 10
	errorCost    = 1 << 20
)

// errInbound is wrapped by what is wrong with what the bus has said.
var errInbound = errors.New("the bus says what it never says")

// inbound is a connection on which the bus may say what it says to its clients, and no more. nats.go takes lines of any
// length and allocates a message by the size that its line has: by one line, a bus that is taken over would end
// this process.
//
// https://docs.nats.io/reference/reference-protocols/nats-protocol
type inbound struct {
	net.Conn
	pace *rate.Limiter
	line []byte // the beginning of one that has not ended
	skip int    // of a message, with the end of its line
	cost int    // of what was read, beside its bytes, and not waited for yet
}

func newInbound(conn net.Conn) *inbound {
	return &inbound{Conn: conn, pace: rate.NewLimiter(inboundRate, inboundBurst)}
}

// Read reads what the bus says. It ends the connection before anything else is read of it.
func (c *inbound) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if wrong := c.scan(p[:n]); wrong != nil {
		return 0, errors.Join(fmt.Errorf("%w: %w", errInbound, wrong), c.Close())
	}
	_ = c.pace.WaitN(context.Background(), min(n+c.cost, inboundBurst)) // it fails for more than the burst alone
	c.cost = 0
	return n, err
}

func (c *inbound) scan(p []byte) error {
	for len(p) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(p))
			// The parser of nats.go looks for the end of the line behind a message.
			for i := max(0, c.skip-2); i < n; i++ {
				if p[i] != "\n\r"[c.skip-i-1] {
					return errors.New("a message that is longer than its size")
				}
			}
			p, c.skip = p[n:], c.skip-n
			continue
		}
		end := bytes.IndexByte(p, '\n') + 1
		rest := p[end:]
		if end == 0 {
			end, rest = len(p), nil
		}
		if c.line = append(c.line, p[:end]...); len(c.line) > maxServerLine {
			return fmt.Errorf("a line of more than %d bytes", maxServerLine)
		}
		if p = rest; bytes.HasSuffix(c.line, []byte("\n")) {
			size, err := messageSize(c.line)
			if err != nil {
				return err
			}
			if c.cost += lineCost; bytes.HasPrefix(c.line, []byte("-ERR")) {
				c.cost += errorCost
			}
			c.line, c.skip = c.line[:0], size
		}
	}
	return nil
}

// messageSize is how much follows a line: a message and the end of its line, or nothing.
func messageSize(line []byte) (int, error) {
	text, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || bytes.ContainsAny(text, "\r\x00\t") {
		return 0, fmt.Errorf("a line that ends otherwise than by CR LF, or has control characters: %.32q", line)
	}
	args := bytes.Split(text, []byte(" "))
	least := 4 // operation, subject, number, reply if any, size
	switch string(args[0]) {
	case "INFO", "PING", "PONG", "+OK", "-ERR":
		return 0, nil
	case "MSG":
	case "HMSG": // the same with the headers' size before the whole
		least++
	default:
		return 0, fmt.Errorf("unknown operation %.16q", args[0])
	}
	if len(args) < least || len(args) > least+1 {
		return 0, fmt.Errorf("a message with %d arguments", len(args))
	}
	size, digits := 0, args[len(args)-1]
	for _, d := range digits {
		if d < '0' || d > '9' || len(digits) > maxSizeDigits {
			return 0, fmt.Errorf("a message of the size %.16q", digits)
		}
		size = size*10 + int(d-'0')
	}
	if most := maxMessage(string(args[1])); size > most {
		return 0, fmt.Errorf("a message of %d bytes for %.64q, which has at most %d", size, args[1], most)
	}
	return size + len("\r\n"), nil
}

// maxMessage is what a message of a subject may have: an entry, or what else the bus takes.
func maxMessage(subj string) int {
	if bucket, _, ok := subject.ParseEntry(subj); ok {
		if b, known := subject.BucketNamed(bucket); known {
			return int(b.MaxEntry) + maxHeader
		}
	}
	return subject.MaxPayload + maxHeader
}

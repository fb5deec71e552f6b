package diskusage

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	// maxPath is PATH_MAX: the kernel takes no longer one.
	maxPath = 4096
	// maxMessage bounds a line between the parent and a child: a path in which each byte is escaped, and the rest.
	maxMessage = 8*maxPath + 4096
	// maxReason bounds what a child says of an error.
	maxReason = 256
)

// request asks a child for a slice of a walk.
type request struct {
	// Walk is the number of the walk; one that the child does not know begins with Path and Mode.
	Walk uint64 `json:"walk"`
	Path string `json:"path"`
	Mode Mode   `json:"mode"`
	// Entries is how many entries the slice may look at.
	Entries int `json:"entries"`
	// Drop are walks that are no longer wanted.
	Drop []uint64 `json:"drop,omitempty"`
}

// answer says how far the slice went.
type answer struct {
	Walk uint64 `json:"walk"`
	// Entries is how many it looked at.
	Entries int `json:"entries"`
	// Done says that the walk has ended. Usage is what it has seen so far, unless Gone or Error is set.
	Done  bool  `json:"done"`
	Usage Usage `json:"usage"`
	// Gone says that there is no such directory.
	Gone bool `json:"gone,omitempty"`
	// Error says why the directory could not be measured.
	Error string `json:"error,omitempty"`
}

// lines reads the messages of the other end, one a line.
func lines(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 1024), maxMessage)
	return s
}

// parseAnswer checks what a child says. A child is no more trusted than what it reads.
func parseAnswer(line []byte) (answer, error) {
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return answer{}, fmt.Errorf("answer of a child: %w", err)
	}
	if a.Entries < 0 || len(a.Error) > maxReason {
		return answer{}, errors.New("answer of a child: out of range")
	}
	return a, nil
}

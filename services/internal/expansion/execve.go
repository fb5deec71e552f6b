package expansion

import (
	"fmt"
	"os"
)

const (
	// MaxPath is the longest path that the kernel takes (PATH_MAX, with the zero at its end).
	MaxPath = 4096 - 1
	// maxStrings bounds what all strings of one execve(2) take: a quarter of the stack, which is 8 MiB by default.
	maxStrings = 2 << 20
	// pointer is what the kernel counts for each string beside its bytes.
	pointer = 8
)

// MaxString is the longest string that execve(2) takes (MAX_ARG_STRLEN, with the zero at its end): an argument, or a
// variable with its name.
func MaxString() int { return 32*os.Getpagesize() - 1 }

// Strings adds up what the arguments and variables of a command take. The kernel counts as much, and the name of the
// program.
type Strings struct{ size int }

// Add counts a string of that length. It returns an error if they are too many with it.
func (s *Strings) Add(length int) error {
	s.size += length + 1 + pointer
	if s.size > maxStrings {
		return fmt.Errorf("all arguments and variables up to it take %d bytes, at most %d are possible", s.size, maxStrings)
	}
	return nil
}

// Remove takes back a string of that length.
func (s *Strings) Remove(length int) { s.size -= length + 1 + pointer }

// Words expands each of the words of a command, and counts them.
func (s *Strings) Words(words []string, value func(name string) (string, bool)) ([]string, error) {
	var out []string
	for i, word := range words {
		expanded, err := Expand(word, value, MaxString())
		if err == nil {
			err = s.Add(len(expanded))
		}
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		out = append(out, expanded)
	}
	return out, nil
}

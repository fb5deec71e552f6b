// Package envfile reads variables from the files that fileKeyRef names (KEP-3721).
//
// A container wrote the file and may still change it, so the file is untrusted: the package opens only a regular one,
// reads a limited amount, and never reads outside of the volume. The format is a strict subset of shell syntax:
// NAME='value'. A value may span several lines, and nothing in it is special. Blank lines, lines that begin with #,
// and comments after a value are ignored.
package envfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/microlet/microlet/services/internal/regularfile"
)

const (
	// maxFile is more than the variables of a process may take on Linux.
	maxFile = 4 << 20
	// maxRead is how much one Reader reads: a container may name a file once for each of its variables.
	maxRead = 64 << 20
)

// Reader reads the variables of one container. The zero value is ready.
type Reader struct{ read int }

// Read returns the variable of that name in the file at path in the volume; "" when there is
// none, or when it is empty.
func (r *Reader) Read(volume, path, name string) (string, error) {
	if r.read > maxRead {
		return "", fmt.Errorf("the files of the container's variables have more than %d bytes together, each counted as "+
			"often as it is named", maxRead)
	}
	root, err := os.OpenRoot(volume)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }() // nothing was written through it
	f, err := regularfile.In(root, path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", err
	}
	r.read += len(text)
	if len(text) > maxFile {
		return "", fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return Parse(string(text), name)
}

// Parse returns the variable of that name in the text, as Read does. What stands after it is
// not looked at.
func Parse(text, name string) (string, error) {
	l := &lines{text: text}
	for {
		line, more := l.next()
		if !more {
			return "", nil
		}
		line = strings.TrimLeft(line, " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		number := l.number
		variable, value, err := assignment(line)
		switch {
		case err != nil:
		case value != "" && (value[0] == ' ' || value[0] == '\t'):
			value = "" // as in a shell, a blank after = ends the value before it began
		case value == "" || value[0] != '\'':
			err = errors.New("the value must stand in single quotes")
		default:
			value, err = l.quoted(value[1:])
		}
		if err != nil {
			return "", fmt.Errorf("line %d: %w", number, err)
		}
		if variable == name {
			return value, nil
		}
	}
}

// lines are those of a text, each without its end: a newline, or a carriage return before it.
type lines struct {
	text   string
	number int
}

func (l *lines) next() (line string, more bool) {
	if l.text == "" {
		return "", false
	}
	l.number++
	line, l.text, _ = strings.Cut(l.text, "\n")
	return strings.TrimSuffix(line, "\r"), true
}

// quoted returns the quoted text of which rest is what its first line has. It may reach beyond the line.
func (l *lines) quoted(rest string) (string, error) {
	var whole strings.Builder
	for {
		part, tail, closed := strings.Cut(rest, "'")
		whole.WriteString(part)
		if closed {
			if tail = strings.TrimLeft(tail, " \t"); tail != "" && tail[0] != '#' {
				return "", errors.New("there is something after the closing quote")
			}
			return whole.String(), nil
		}
		whole.WriteByte('\n')
		var more bool
		if rest, more = l.next(); !more {
			return "", errors.New("the quote is never closed")
		}
	}
}

func assignment(line string) (name, value string, err error) {
	name, value, ok := strings.Cut(line, "=")
	switch {
	case !ok:
		return "", "", errors.New("there is no '='")
	case strings.TrimRight(name, " \t") == "":
		return "", "", errors.New("the variable has no name")
	case strings.TrimRight(name, " \t") != name:
		return "", "", errors.New("there is a blank before '='")
	}
	return name, value, nil
}

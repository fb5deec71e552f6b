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

// maxFile is more than the variables of a process may take on Linux.
const maxFile = 4 << 20

// Read returns the variable of that name in the file at path in the volume; "" when there is
// none, or when it is empty.
func Read(volume, path, name string) (string, error) {
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
	if len(text) > maxFile {
		return "", fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return Parse(string(text), name)
}

// Parse returns the variable of that name in the text, as Read does. What stands after it is
// not looked at.
func Parse(text, name string) (string, error) {
	for number := 1; text != ""; {
		line, rest, _ := strings.Cut(text, "\n")
		line = strings.TrimLeft(strings.TrimSuffix(line, "\r"), " \t")
		if line == "" || line[0] == '#' {
			text, number = rest, number+1
			continue
		}
		variable, value, err := assignment(line)
		if err != nil {
			return "", fmt.Errorf("line %d: %w", number, err)
		}
		if value == "" || value[0] == ' ' || value[0] == '\t' {
			// As in a shell, a blank after = ends the value before it began.
			if value == "" {
				return "", fmt.Errorf("line %d: the value must stand in single quotes", number)
			}
			if variable == name {
				return "", nil
			}
			text, number = rest, number+1
			continue
		}
		if value[0] != '\'' {
			return "", fmt.Errorf("line %d: the value must stand in single quotes", number)
		}
		// The quoted text may reach beyond the line.
		_, after, _ := strings.Cut(text, "='")
		content, after, closed := strings.Cut(after, "'")
		if !closed {
			return "", fmt.Errorf("line %d: the quote is never closed", number)
		}
		tail, rest, _ := strings.Cut(after, "\n")
		if tail = strings.Trim(tail, " \t\r"); tail != "" && tail[0] != '#' {
			return "", fmt.Errorf("line %d: there is something after the closing quote", number)
		}
		if variable == name {
			return strings.ReplaceAll(content, "\r\n", "\n"), nil
		}
		text, number = rest, number+strings.Count(content, "\n")+1
	}
	return "", nil
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

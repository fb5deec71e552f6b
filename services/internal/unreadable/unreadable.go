// Package unreadable says in words why a file that an operator named cannot be read.
package unreadable

import (
	"errors"
	"io/fs"
	"syscall"
)

// Why says what is wrong with the file that err is about, and what to do. Of an error that it does not know, it gives
// the cause as the operating system words it, without the operation and the path.
func Why(err error) (fault, remedy string) {
	var at *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it does not exist", "check the path"
	case errors.Is(err, fs.ErrPermission):
		return "this user may not read it", "run this as root, or change its mode"
	case errors.Is(err, syscall.EISDIR):
		return "it is a folder", "name a file"
	case errors.Is(err, syscall.ENOTDIR):
		return "a part of its path is no folder", "check the path"
	case errors.Is(err, syscall.ELOOP):
		return "its links go round in a circle", "check the path"
	case errors.Is(err, syscall.ENAMETOOLONG):
		return "its name is too long", "check the path"
	case errors.As(err, &at):
		return at.Err.Error(), "check the path and its file system"
	}
	return err.Error(), "check the path and its file system"
}

package checkpoint

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/microlet/microlet/services/internal/atomicfile"
	"github.com/microlet/microlet/services/internal/regularfile"
)

// bad is the end of the name of a file that was set aside.
const bad = ".bad"

// File is one such file on the disk. One goroutine uses it at a time, and no other process writes it.
type File struct {
	path   string
	format Format
	limit  int
	// digest is that of what the file surely has; nil if that is unknown.
	digest *[sha256.Size]byte
}

// New returns the file at a path, without a look at it. The file has at most limit bytes.
func New(path string, format Format, limit int) *File {
	return &File{path: path, format: format, limit: limit}
}

// Load returns what the file holds; fs.ErrNotExist if there is none. It follows no link and opens regular files only.
func (f *File) Load() (Content, error) {
	f.digest = nil
	text, err := f.read()
	if err != nil {
		return Content{}, err
	}
	content, err := f.format.Decode(text)
	if err != nil {
		return Content{}, err
	}
	f.digest = new(sha256.Sum256(text))
	return content, nil
}

func (f *File) read() ([]byte, error) {
	file, err := regularfile.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	// A file that is far too large takes no memory.
	if info, err := file.Stat(); err != nil {
		return nil, err
	} else if info.Size() > int64(f.limit) {
		return nil, fmt.Errorf("it has %d bytes, and at most %d are read", info.Size(), f.limit)
	}
	text, err := io.ReadAll(io.LimitReader(file, int64(f.limit)+1))
	if err == nil && len(text) > f.limit {
		err = fmt.Errorf("it grows, and at most %d bytes are read", f.limit)
	}
	return text, err
}

// Store makes the file hold this. It is on the disk then, and after a crash there is the old file or the new one. A
// file that has the content already is not written. After an error the file may have either content.
func (f *File) Store(c Content) error {
	text, err := f.format.Encode(c)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(text)
	if f.digest != nil && *f.digest == digest {
		return nil
	}
	if len(text) > f.limit {
		return fmt.Errorf("write %s: it would have %d bytes, and at most %d are read", f.path, len(text), f.limit)
	}
	f.digest = nil
	if err := atomicfile.Write(f.path, text, atomicfile.Attributes{
		Mode: 0o600, UID: -1, GID: -1, Durable: true, OneWriter: true,
	}); err != nil {
		return err
	}
	f.digest = &digest
	return nil
}

// SetAside gives what has the file's name another one, so that an operator can look at it, and replaces what was set
// aside before. It returns the error for which it does so, with what became of the file.
func (f *File) SetAside(because error) error {
	f.digest = nil
	aside := f.path + bad
	// A rename replaces no folder.
	err := os.RemoveAll(aside)
	if err == nil {
		err = os.Rename(f.path, aside)
	}
	if err != nil {
		return fmt.Errorf("%s cannot be used, and is there until it is replaced: %w", f.path, errors.Join(because, err))
	}
	return fmt.Errorf("%s cannot be used, and is %s now: %w", f.path, aside,
		errors.Join(because, atomicfile.SyncDir(filepath.Dir(f.path))))
}

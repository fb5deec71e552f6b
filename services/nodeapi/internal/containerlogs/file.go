package containerlogs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/crilog"
	"github.com/microlet/microlet/services/internal/samemount"
)

// lookAgain is how often a log is looked at of which the kernel reports no change.
const lookAgain = time.Second

// file is a log. No link is followed to it, so that nobody puts one there meanwhile.
type file struct {
	folder, path string
	from         *os.File
	lines        *crilog.Reader
	changes      *fsnotify.Watcher // nil until somebody waits for a change
}

// open opens the file that has the path now, in the place of the one before.
func (f *file) open() error {
	from, err := samemount.RegularFile(f.folder, f.path)
	if err != nil {
		return err
	}
	if f.from != nil {
		_ = f.from.Close()
	}
	f.from, f.lines = from, crilog.NewReader(from)
	return nil
}

func (f *file) close() {
	_ = f.from.Close()
	if f.changes != nil {
		_ = f.changes.Close()
	}
}

// read prints the log from its last lines on, or all of it, and what is written later if the container is followed.
func read(ctx context.Context, f *file, s *state, p *printer, o *v1.PodLogOptions) error {
	if o.TailLines != nil {
		if err := f.seekTail(ctx, *o.TailLines); err != nil {
			return fmt.Errorf("failed to tail %d lines of the log: %w", *o.TailLines, err)
		}
	}
	for running := true; !p.done(); {
		piece, err := f.lines.Next()
		if err == nil {
			err = errors.Join(p.print(piece), ctx.Err())
		} else if errors.Is(err, io.EOF) {
			switch {
			case !o.Follow:
				if rest := f.lines.Rest(); len(rest) > 0 {
					return p.print(rest)
				}
				return nil
			case !running: // and all is printed
				return nil
			}
			before := f.from
			if running, err = f.wait(ctx, s); f.from != before {
				p.restart()
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// seekTail goes to the beginning of the last lines. One without an end does not count.
func (f *file) seekTail(ctx context.Context, lines int64) error {
	offset, err := f.from.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	block := make([]byte, 32<<10)
	for ends := int64(0); offset > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		begin := max(offset-int64(len(block)), 0)
		n, err := f.from.ReadAt(block[:offset-begin], begin)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for at := n; ; ends++ {
			if at = bytes.LastIndexByte(block[:at], '\n'); at < 0 {
				break
			}
			if ends == lines {
				_, err := f.from.Seek(begin+int64(at)+1, io.SeekStart)
				return err
			}
		}
		offset = begin
	}
	_, err = f.from.Seek(0, io.SeekStart)
	return err
}

// wait returns when there may be more to read. If the container does not run any more, there is nothing to wait for.
func (f *file) wait(ctx context.Context, s *state) (running bool, err error) {
	if f.changes == nil {
		return true, f.watch() // something may have been written before
	}
	if running, err := s.running(ctx); err != nil || !running {
		return false, err
	}
	again := time.NewTimer(lookAgain)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case e := <-f.changes.Events:
			// A log that is rotated gets another name, and a new one gets its own.
			if e.Has(fsnotify.Create) && filepath.Base(e.Name) == filepath.Base(f.path) {
				if err := f.open(); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return false, err
				}
			}
			return true, nil
		case err := <-f.changes.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) { // the log is looked at all the same
				return false, err
			}
		case <-again.C:
			return true, nil
		}
	}
}

// watch begins to watch the folder of the log.
func (f *file) watch() (err error) {
	if f.changes, err = fsnotify.NewWatcher(); err != nil {
		return fmt.Errorf("watch the log: %w", err)
	}
	if err := f.changes.Add(filepath.Join(f.folder, filepath.Dir(f.path))); err != nil {
		return fmt.Errorf("watch the log: %w", err)
	}
	return nil
}

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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/crilog"
	"github.com/microlet/microlet/services/internal/samemount"
)

// lookAgain is how often a log is looked at of which the kernel reports no change.
const lookAgain = time.Second

// file is the log that a container writes. No link is followed to it, so that none can be put there meanwhile.
type file struct {
	folder, path string
	// byPodsync opens what this process may not open.
	byPodsync func(ctx context.Context) (*os.File, error)

	from    *os.File
	lines   *crilog.Reader
	ended   bool              // another file has the path, so nothing more is written to this one
	changes *fsnotify.Watcher // nil until a reader waits for a change
}

// open opens the file that has the path now, in the place of the one before.
func (f *file) open(ctx context.Context) error {
	from, err := samemount.RegularFile(f.folder, f.path)
	if errors.Is(err, fs.ErrPermission) {
		from, err = f.byPodsync(ctx)
	}
	if err != nil {
		return err
	}
	if f.from != nil {
		_ = f.from.Close()
	}
	f.from, f.lines, f.ended = from, crilog.NewReader(from), false
	return nil
}

// replaced reports whether another file has the path by now: the log was rotated.
func (f *file) replaced() bool {
	now, err := os.Lstat(filepath.Join(f.folder, f.path))
	if err != nil {
		return false // it is between two files
	}
	held, err := f.from.Stat()
	return err == nil && !os.SameFile(now, held)
}

// goOn opens the next file of a log that was rotated, and reports whether there is something to read at once. What was
// written to the one before comes first, so it is read to its end once more. While the next one cannot be had, as when
// podsync restarts, the one before stays, and the next round tries again.
func (f *file) goOn(ctx context.Context) (more bool, err error) {
	if !f.replaced() {
		return false, nil
	}
	if !f.ended {
		f.ended = true
		return true, nil
	}
	err = f.open(ctx)
	if code := status.Code(err); code == codes.Unavailable || code == codes.NotFound || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
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
	if running, err = s.running(ctx); err != nil {
		return false, err
	}
	if more, err := f.goOn(ctx); more || err != nil || !running {
		return running || more, err
	}
	again := time.NewTimer(lookAgain)
	defer again.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case err := <-f.changes.Errors:
		if !errors.Is(err, fsnotify.ErrEventOverflow) { // the log is looked at all the same
			return false, err
		}
	case <-f.changes.Events: // a log that is rotated gets another name, and a new one gets its own
	case <-again.C:
	}
	return true, nil
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

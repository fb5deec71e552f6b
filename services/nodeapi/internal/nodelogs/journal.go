package nodelogs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	// queryTimeout bounds one question, as the kubelet's.
	queryTimeout = 30 * time.Second
	// killAfter is how long journalctl may take to end once it has no reader.
	killAfter = time.Second
)

// Logs answer queries.
type Logs struct {
	Files Files
	// Command is journalctl; a test has its own.
	Command string
}

// Write writes the answer. What cannot be had is said in the answer itself, as the kubelet does; the
// error is that it could not be delivered.
func (l Logs) Write(ctx context.Context, w io.Writer, q *Query) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if q.File != "" {
		return l.file(ctx, w, q.File, q.File)
	}
	units := l.units(ctx)
	var inJournal, inFiles []string
	for _, s := range q.Services {
		if slices.ContainsFunc(units, func(u string) bool { return u == s || u == s+".service" }) {
			inJournal = append(inJournal, s)
		} else {
			inFiles = append(inFiles, s)
		}
	}
	if len(inJournal) > 0 {
		if err := l.journal(ctx, w, q.journalArguments(inJournal)); err != nil {
			return err
		}
	}
	if len(inFiles) > 0 && q.filtered() {
		_, err := fmt.Fprintf(w,
			"\noptions present and query resolved to log files for %v\ntry without specifying options\n", inFiles)
		return err
	}
	for _, s := range inFiles {
		if err := l.file(ctx, w, s, s, s+".log", s+"/"+s+".log"); err != nil {
			return err
		}
	}
	return nil
}

// units are those that the journal has lines of.
func (l Logs) units(ctx context.Context) []string {
	out, err := l.command(ctx, "--field=_SYSTEMD_UNIT").Output()
	if err != nil {
		return nil // there is no journal, or none that this user may read
	}
	return strings.Fields(string(out))
}

func (l Logs) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.Command, args...) //nolint:gosec // args are checked; no shell reads them
	cmd.WaitDelay = killAfter
	return cmd
}

func (l Logs) journal(ctx context.Context, w io.Writer, args []string) error {
	cmd := l.command(ctx, args...)
	out := &errWriter{w: w}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if out.err != nil {
		return out.err
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		_, err := fmt.Fprintf(w, "\nerror: journal output not available\n")
		return err
	}
	return nil
}

// errWriter keeps the error of a reader that has gone.
type errWriter struct {
	w   io.Writer
	err error
}

func (t *errWriter) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	if err != nil {
		t.err = err
	}
	return n, err
}

// file writes the first of the files that there is.
func (l Logs) file(ctx context.Context, w io.Writer, what string, names ...string) error {
	for _, name := range names {
		f, err := l.Files.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			_, err := fmt.Fprintf(w, "\nerror getting log for %s: %v\n", what, err)
			return err
		}
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			_ = f.Close() // it was only looked at
			continue
		}
		_, err = io.Copy(w, whileNotDone{ctx, f})
		return errors.Join(err, f.Close())
	}
	_, err := fmt.Fprintf(w, "\nlog not found for %s\n", what)
	return err
}

// whileNotDone reads until the context ends.
type whileNotDone struct {
	ctx context.Context
	io.Reader
}

func (r whileNotDone) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/crilog"
	"github.com/microlet/microlet/services/internal/samemount"
	"github.com/microlet/microlet/services/podsync/internal/labels"
	"github.com/microlet/microlet/services/podsync/internal/pod"
)

// The kubelet's bounds of a termination message.
const (
	// maxMessageBytes is how much of the end of the message file is shown.
	maxMessageBytes = 4096
	// maxMessageLogBytes and maxMessageLogLines bound what is taken from the log instead.
	maxMessageLogBytes = 2048
	maxMessageLogLines = 80
	// reasonCannotRun marks a container that never ran, so that it has no log.
	reasonCannotRun = "ContainerCannotRun"
)

// terminationMessage returns what an exited container left as its last words: the end
// of its terminationMessagePath file or, if the container asked for that and failed, of
// its log. final is false when reading failed in a way that may not last; the message
// then says so, as the kubelet's does.
func (r *Runtime) terminationMessage(c *pod.Container) (message string, final bool) {
	fallback := c.Annotations[labels.ContainerTerminationMessagePolicy] == string(
		v1.TerminationMessageFallbackToLogsOnError) &&
		c.ExitCode != 0 && c.Reason != reasonCannotRun
	if file := messageFile(c); file != "" {
		text, err := readEnd(file, maxMessageBytes)
		switch {
		case err == nil && text != "":
			return text, true
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return fmt.Sprintf("Error on reading termination log %s: %v", file, err), false
		}
	}
	if !fallback {
		return "", true
	}
	text, err := r.readLogEnd(c.LogPath)
	if err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err), false
	}
	return text, true
}

// messageFile returns the file on the host that is mounted at the container's
// terminationMessagePath, or "".
func messageFile(c *pod.Container) string {
	at := c.Annotations[labels.ContainerTerminationMessagePath]
	if at == "" {
		return ""
	}
	if !path.IsAbs(at) {
		at = "/" + at
	}
	for _, m := range c.Mounts {
		if m.GetContainerPath() == at {
			return m.GetHostPath()
		}
	}
	return ""
}

// readEnd returns the last limit bytes of a file. The file was the container's to
// write, so only a regular one is read, and opening it never blocks: a FIFO put in its
// place must not hold podsync.
func readEnd(name string, limit int64) (_ string, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("it is not a regular file")
	}
	data, _, err := end(f, limit)
	return string(data), err
}

// readLogEnd returns the end of a container's log: at most 80 lines and 2048 bytes. The log is below the folder of all
// logs, where a pod may be able to write, so that podsync follows no link there, waits for nothing, and reads no more
// than a line of a log can have.
func (r *Runtime) readLogEnd(name string) (string, error) {
	path, err := filepath.Rel(r.opts.PodLogsDir, name)
	if err != nil || r.opts.PodLogsDir == "" {
		return "", fmt.Errorf("log %q is not below the folder of logs %q", name, r.opts.PodLogsDir)
	}
	f, err := samemount.RegularFile(r.opts.PodLogsDir, path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, whole, err := end(f, crilog.MaxLine)
	if err != nil {
		return "", err
	}
	return logEnd(data, whole)
}

// logEnd returns what the last lines say. If they are not the whole log, the first of them may be the end of one, which
// is taken for what the container printed.
func logEnd(data []byte, whole bool) (string, error) {
	start := len(bytes.TrimSuffix(data, []byte{'\n'}))
	for range maxMessageLogLines {
		if start = bytes.LastIndexByte(data[:start], '\n'); start < 0 {
			break
		}
	}
	var text []byte
	var format crilog.Format
	for line := range bytes.Lines(data[start+1:]) {
		if start < 0 && !whole {
			text, whole = append(text, line...), true
			continue
		}
		if format == nil {
			var err error
			if format, err = crilog.FormatOf(line); err != nil {
				return "", err
			}
		}
		if e, err := format(line); err == nil { // the kubelet skips others too
			text = append(text, e.Text...)
		}
	}
	return string(text[max(len(text)-maxMessageLogBytes, 0):]), nil
}

// end returns the last limit bytes of a file, and whether that is all of it.
func end(f *os.File, limit int64) (data []byte, whole bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	offset := max(info.Size()-limit, 0)
	data, err = io.ReadAll(io.NewSectionReader(f, offset, limit))
	return data, offset == 0, err
}

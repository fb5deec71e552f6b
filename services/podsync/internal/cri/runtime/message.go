package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/crilog"
	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/samemount"
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
func (r *Runtime) terminationMessage(ctx context.Context, c *pod.Container) (message string, final bool) {
	fallback := c.Annotations[pod.AnnotationTerminationMessagePolicy] == string(
		v1.TerminationMessageFallbackToLogsOnError) &&
		c.ExitCode != 0 && c.Reason != reasonCannotRun
	if file := messageFile(c); file != "" {
		text, last, err := r.readMessage(ctx, file)
		switch {
		case err == nil && text != "":
			return text, true
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return fmt.Sprintf("Error on reading termination log %s: %v", file, err), last
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
	at := c.Annotations[pod.AnnotationTerminationMessagePath]
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

// readMessage returns the end of a message file. The file that podsync has made for the container is in a folder of its
// own. In its place the pod may have mounted a file of any volume, which a child reads. last says that an error stays:
// a file system that has not answered is not asked again, since each time holds the pod for as long.
func (r *Runtime) readMessage(ctx context.Context, file string) (text string, last bool, err error) {
	path, err := filepath.Rel(r.opts.PodsDir, file)
	if parts := strings.Split(path, "/"); err == nil && len(parts) == 4 && parts[1] == "containers" {
		f, err := samemount.RegularFile(r.opts.PodsDir, path)
		if err == nil {
			defer f.Close()
			data, _, err := end(f, maxMessageBytes)
			return string(data), false, err
		}
		if !errors.Is(err, unix.EXDEV) { // else something is mounted there
			return "", false, err
		}
	}
	if r.opts.Foreign == nil {
		return "", false, errors.New("it is not podsync's own")
	}
	data, err := readForeign.Do(ctx, r.opts.Foreign, file, foreignFile{Path: file})
	return string(data), ctx.Err() == nil, err
}

// readForeign returns the end of a message file that is not podsync's own.
var readForeign = childpool.Operation[foreignFile, []byte]{Name: "read termination message", Patience: 10 * time.Second}

type foreignFile struct{ Path string }

// Operations are what a child does for this package. See package childpool.
func Operations() childpool.Table {
	t := childpool.Table{}
	childpool.Handle(t, readForeign, func(_ context.Context, file foreignFile) ([]byte, error) { return file.end() })
	return t
}

// end returns the last bytes of the file. It was the container's to write, so only a regular one is opened.
func (f foreignFile) end() ([]byte, error) {
	file, err := regularfile.Open(f.Path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, _, err := end(file, maxMessageBytes)
	return data, err
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
	start := len(data)
	for range 1 + maxMessageLogLines { // a line without an end is one more, which is read if another is none
		if start = bytes.LastIndexByte(data[:start], '\n'); start < 0 {
			break
		}
	}
	var text []byte
	var format crilog.Format
	entries := 0
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
		e, err := format(line)
		if err != nil {
			continue // as in the kubelet
		}
		text = append(text, e.Text...)
		if entries++; entries == maxMessageLogLines {
			break
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

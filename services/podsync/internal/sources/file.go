package sources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/services/internal/logkey"
	"github.com/microlet/microlet/services/podsync/internal/sources/manifest"
)

const (
	// settle is how long after a change more of the same is waited for: an editor writes, renames and removes, and a
	// manifest that is half written is no manifest.
	settle = 100 * time.Millisecond
	// watchRetry is how often a path that could not be watched is tried again.
	watchRetry = time.Second
)

// FileOptions say where the manifests are.
type FileOptions struct {
	// Path is staticPodPath: a folder of manifests, or one manifest.
	Path string
	// Period is fileCheckFrequency: how often all is read again, whatever the watch saw. The kubelet's default is 20
	// s.
	Period   time.Duration
	NodeName string
	Log      *slog.Logger
	Metrics  *Metrics
}

// File is the source of static pods from files.
type File struct {
	o    FileOptions
	path string
	set  *set
	// kept are the pods by their files.
	kept map[string]*v1.Pod
	// logged are the errors of files, so that each is logged once.
	logged map[string]string
}

// NewFile returns the source; Run starts it.
func NewFile(o FileOptions) *File {
	return &File{
		o: o, path: strings.TrimRight(o.Path, string(os.PathSeparator)), // it goes into UIDs, as the kubelet takes it
		kept: map[string]*v1.Pod{}, logged: map[string]string{},
	}
}

// Run reads the manifests again and again until ctx ends.
func (f *File) Run(ctx context.Context, sink Sink) error {
	f.set = newSet(podsyncv1.PodSource_POD_SOURCE_FILE, sink, f.o.Log)
	w := &watch{path: f.path, log: f.set.log}
	defer w.close()
	relist := time.NewTicker(f.o.Period)
	defer relist.Stop()
	retry := time.NewTicker(watchRetry)
	defer retry.Stop()
	quiet := time.NewTimer(settle)
	quiet.Stop()
	w.open()
	f.relist()
	dirty := map[string]bool{} // true: it was gone in between
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-relist.C:
			f.relist()
		case <-retry.C:
			if w.open() {
				f.relist() // what happened before the watch began
			}
		case e, ok := <-w.events():
			if !ok {
				w.close()
				continue
			}
			if name := w.changed(e); name != "" {
				dirty[name] = dirty[name] || e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)
				quiet.Reset(settle)
			}
		case err, ok := <-w.errors():
			w.close()
			if ok {
				f.set.log.Warn("watch of manifests broken, starting another", logkey.Path, f.path, logkey.Err, err)
			}
		case <-quiet.C:
			f.takeBack(dirty)
			for name := range dirty {
				f.reread(name)
			}
			clear(dirty)
			f.publish()
		}
	}
}

// takeBack ends the pods of those files that were removed, also if they are there again: who removes a manifest and
// puts it back restarts its pod, as under the kubelet. A file that is replaced by renaming was never gone.
func (f *File) takeBack(dirty map[string]bool) {
	before := len(f.kept)
	for name, gone := range dirty {
		if gone {
			delete(f.kept, name)
		}
	}
	if len(f.kept) < before {
		f.publish()
	}
}

// reread reads one file that changed. What is broken may be half written, so its pod stays until the next relist.
func (f *File) reread(name string) {
	if strings.HasPrefix(filepath.Base(name), ".") && name != f.path {
		return
	}
	p, err := f.load(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		delete(f.kept, name)
		delete(f.logged, name)
	case err != nil:
		f.logChange(name, err)
	default:
		delete(f.logged, name)
		f.kept[name] = p
	}
}

// relist reads everything.
func (f *File) relist() {
	info, err := os.Stat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		clear(f.kept)
		clear(f.logged)
		f.logChange(f.path, errors.New("path does not exist: create it, or leave staticPodPath empty"))
	case err != nil:
		f.failed(err)
		return
	case info.IsDir():
		if err := f.readFolder(); err != nil {
			f.failed(err)
			return
		}
	default:
		p, err := f.load(f.path)
		if err != nil {
			f.logChange(f.path, err)
			f.publishBroken()
			return // the pod of its last good version runs on, as under the kubelet
		}
		f.kept = map[string]*v1.Pod{f.path: p}
		clear(f.logged)
	}
	f.publish()
}

func (f *File) readFolder() error {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return err
	}
	found, errs := map[string]*v1.Pod{}, map[string]error{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		name := filepath.Join(f.path, e.Name())
		p, err := f.load(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			errs[name] = err
		default:
			found[name] = p
		}
	}
	f.kept = found
	for name := range f.logged {
		if errs[name] == nil {
			delete(f.logged, name)
		}
	}
	for name, err := range errs {
		f.logChange(name, err)
	}
	return nil
}

// load reads the pod of one file.
func (f *File) load(name string) (*v1.Pod, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("is no regular file (%s): put manifests into the folder itself", info.Mode().Type())
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := manifest.Read(file)
	if err != nil {
		return nil, err
	}
	return manifest.Parse(data, manifest.Origin{NodeName: f.o.NodeName, Path: name})
}

func (f *File) publish() {
	files := slices.Sorted(maps.Keys(f.kept))
	pods := make([]*v1.Pod, 0, len(files))
	for _, name := range files {
		pods = append(pods, f.kept[name])
	}
	pods = f.set.unique(pods, true, func(p *v1.Pod) {
		f.o.Metrics.failures.WithLabelValues(Name(f.set.from)).Inc()
		f.set.log.Error("two manifests name the same pod, the one in the last file is run: remove one of them",
			logkey.Pod, p.Namespace+"/"+p.Name, logkey.Path, f.path)
	})
	f.set.replace(pods)
	f.publishBroken()
}

func (f *File) publishBroken() {
	f.o.Metrics.broken.WithLabelValues(Name(f.set.from)).Set(float64(len(f.logged)))
}

// failed is for what keeps the source from knowing what is wanted: nothing changes.
func (f *File) failed(err error) {
	f.logChange(f.path, err)
	f.publishBroken()
}

// logChange logs what is wrong with a file, once for each change of it.
func (f *File) logChange(name string, err error) {
	if f.logged[name] == err.Error() {
		return
	}
	f.logged[name] = err.Error()
	f.o.Metrics.failures.WithLabelValues(Name(f.set.from)).Inc()
	f.set.log.Error("manifest cannot be used", logkey.Path, name, logkey.Err, err)
}

// watch is the kernel's word on what changes at a path, as far as it gives it.
type watch struct {
	path    string
	log     *slog.Logger
	watcher *fsnotify.Watcher
	file    bool // path is a file. Its folder is watched, since editors replace files
	failed  string
}

// open begins to watch, and reports whether it does so from now.
func (w *watch) open() bool {
	if w.watcher != nil {
		return false
	}
	info, err := os.Stat(w.path)
	if err != nil {
		return false // the relist reports it
	}
	at := w.path
	if w.file = !info.IsDir(); w.file {
		at = filepath.Dir(w.path)
	}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(at); err == nil {
			w.watcher, w.failed = watcher, ""
			return true
		}
		err = errors.Join(err, watcher.Close())
	}
	if w.failed != err.Error() {
		w.failed = err.Error()
		w.log.Warn("manifests cannot be watched, they are read at fileCheckFrequency alone", logkey.Path, at,
			logkey.Err, err)
	}
	return false
}

func (w *watch) close() {
	if w.watcher != nil {
		if err := w.watcher.Close(); err != nil {
			w.log.Warn("watch of manifests not closed", logkey.Err, err)
		}
		w.watcher = nil
	}
}

func (w *watch) events() <-chan fsnotify.Event {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Events
}

func (w *watch) errors() <-chan error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Errors
}

// changed is the file that an event is about; empty when it is about none of the manifests.
func (w *watch) changed(e fsnotify.Event) string {
	name := filepath.Clean(e.Name)
	switch {
	case w.file && name == w.path:
		return name
	case w.file:
		return ""
	case name == w.path: // the folder itself was removed or renamed
		if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
			w.close()
		}
		return ""
	}
	return name
}

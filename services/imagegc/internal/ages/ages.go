package ages

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/microlet/microlet/services/internal/logkey"
)

// Age is how long ago things happened to an image, in time for which the node ran.
type Age struct {
	// Detected is how long the image has been on the node, as far as that was seen.
	Detected time.Duration
	// Unused is how long no container has used it; Detected if none ever has.
	Unused time.Duration
	// Used reports whether a container has ever used it.
	Used bool
}

// record is what is known of an image. Its times are of the store's own clock.
type record struct {
	Detected time.Duration `json:"detected"`
	// LastUsed is nil if no container has ever used the image.
	LastUsed *time.Duration `json:"lastUsed,omitempty"`
}

// Options of a Store. All fields are required.
type Options struct {
	// Path of the file. Its folder must exist.
	Path string
	// Boot returns the present boot.
	Boot func() (Boot, error)
	Log  *slog.Logger
}

// Store remembers the ages of the images that are on the node. It is safe for concurrent use.
type Store struct {
	o Options

	mu sync.Mutex
	// ran is how long the node has run until the boot was read last, since the first file was begun.
	ran    time.Duration
	boot   Boot
	images map[string]record
}

// Open reads the file, or starts without ages if no file can be read. The error is that the node does not say how long
// it runs.
func Open(o Options) (*Store, error) {
	boot, err := o.Boot()
	if err != nil {
		return nil, err
	}
	s := &Store{o: o, boot: boot, images: map[string]record{}}
	f, err := read(o.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err != nil:
		aside, asideErr := setAside(o.Path)
		o.Log.Warn("ages of images not read; they start again", logkey.Path, o.Path, logkey.Err, errors.Join(err, asideErr),
			"aside", aside)
		return s, nil
	}
	s.images = f.Images
	s.ran = f.Ran + min(boot.ranFor(Boot{ID: f.BootID, Uptime: f.Uptime}), maxAway)
	return s, nil
}

// now advances the store's clock. The caller holds mu. If the uptime cannot be read, the clock stands still.
func (s *Store) now() time.Duration {
	boot, err := s.o.Boot()
	if err != nil {
		s.o.Log.Warn("uptime not read; images do not age meanwhile", logkey.Err, err)
		return s.ran
	}
	s.ran += boot.ranFor(s.boot)
	s.boot = boot
	return s.ran
}

// See takes over which images are on the node, and which of them are used. It forgets the others, and saves the file.
// The error is that of saving: what was seen counts all the same.
func (s *Store) See(present []string, used map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	images := make(map[string]record, len(present))
	for _, id := range present {
		r, known := s.images[id]
		if !known {
			r = record{Detected: now}
		}
		if used[id] {
			at := now
			r.LastUsed = &at
		}
		images[id] = r
	}
	s.images = images
	if err := write(s.o.Path, file{
		Version: version, BootID: s.boot.ID, Uptime: s.boot.Uptime, Ran: now, Images: images,
	}); err != nil {
		return fmt.Errorf("save the ages of images: %w", err)
	}
	return nil
}

// Forget drops what is known of an image that was removed.
func (s *Store) Forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.images, id)
}

// Of returns the ages of all images that were seen last.
func (s *Store) Of() map[string]Age {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	all := make(map[string]Age, len(s.images))
	for id, r := range maps.All(s.images) {
		a := Age{Detected: max(now-r.Detected, 0)}
		a.Unused = a.Detected
		if r.LastUsed != nil {
			a.Used, a.Unused = true, max(now-*r.LastUsed, 0)
		}
		all[id] = a
	}
	return all
}

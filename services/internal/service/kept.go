package service

import (
	"os"

	"github.com/microlet/microlet/services/internal/logkey"
)

// Kept are files that the supervisor keeps open for a service while it restarts.
type Kept struct {
	service   *Service
	inherited map[string]*os.File
}

// Take returns the file of a name that an earlier process of the service kept, nil if there is none. It is the caller's
// then.
func (k *Kept) Take(name string) *os.File {
	f := k.inherited[name]
	delete(k.inherited, name)
	return f
}

// Keep has the supervisor keep a file, in place of an earlier one of the name. In the single placement, no process
// outlives the service, and nothing is kept.
func (k *Kept) Keep(name string, f *os.File) {
	if k.service.notifier == nil {
		return
	}
	if err := k.service.notifier.Keep(name, f); err != nil {
		k.service.Log.Warn("the supervisor does not keep a file open, a restart loses it", logkey.Name, name, logkey.Err, err)
	}
}

// Drop has the supervisor close the file of a name.
func (k *Kept) Drop(name string) {
	if k.service.notifier == nil {
		return
	}
	if err := k.service.notifier.Drop(name); err != nil {
		k.service.Log.Warn("the supervisor may keep a file open that is not needed", logkey.Name, name, logkey.Err, err)
	}
}

package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/logkey"
)

// hostPath is something of the node itself. It may lie on a file system that hangs.
type hostPath struct {
	foreign childpool.Runner
	private func(p *v1.Pod) string // see ManagerOptions.Private
	log     *slog.Logger

	mu sync.Mutex
	// checked are the volumes whose type was found right: the kubelet too looks once, when
	// the volume comes to the pod, and not at each restart of a container.
	checked map[types.UID][]string
}

func (h *hostPath) Name() string { return "kubernetes.io~host-path" }

func (h *hostPath) Handles(v *v1.Volume) bool { return v.HostPath != nil }

func (h *hostPath) Refreshes(*Spec) bool { return false }

func (h *hostPath) Check(ctx context.Context, s *Spec) error {
	_, err := h.SetUp(ctx, s)
	return err
}

func (h *hostPath) Existing(s *Spec) (Mounted, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mounted(s), slices.Contains(h.checked[s.Pod.UID], s.Volume.Name)
}

func (h *hostPath) mounted(s *Spec) Mounted { return Mounted{HostPath: s.Volume.HostPath.Path} }

func (h *hostPath) SetUp(ctx context.Context, s *Spec) (Mounted, error) {
	source := s.Volume.HostPath
	if climbs(source.Path) {
		return Mounted{}, fmt.Errorf("invalid HostPath `%s`: must not contain '..'", source.Path)
	}
	c := hostPathCall{Path: source.Path, Private: h.private(s.Pod)}
	if source.Type != nil {
		c.Type = *source.Type
	}
	if err := h.check(ctx, s, c); err != nil {
		return Mounted{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if names := h.checked[s.Pod.UID]; !slices.Contains(names, s.Volume.Name) {
		h.checked[s.Pod.UID] = append(names, s.Volume.Name)
	}
	return h.mounted(s), nil
}

func (h *hostPath) check(ctx context.Context, s *Spec, c hostPathCall) error {
	if c.Type == v1.HostPathUnset && c.Private == "" {
		return nil
	}
	state, err := checkHostPath.Do(ctx, h.foreign, c.Path, c)
	if err == nil || c.Type != v1.HostPathUnset || state.Own || ctx.Err() != nil {
		return err
	}
	// Without a type the kubelet does not even look at the path. If it hangs, the runtime will find out.
	h.log.Warn("a hostPath cannot be looked at, so the runtime is left to mount it", logkey.PodUID, s.Pod.UID,
		"volume", s.Volume.Name, logkey.Path, c.Path, logkey.Err, err)
	return nil
}

// hostPathCall asks whether a path is of a type, and may make it.
type hostPathCall struct {
	Path string
	Type v1.HostPathType
	// Private is the folder that the path must not be in; empty is none.
	Private string
}

// hostPathState says whether the path is in the folder that it must not be in.
type hostPathState struct{ Own bool }

func (c *hostPathCall) do() (hostPathState, error) {
	err := reaches(c.Private, c.Path)
	switch {
	case errors.Is(err, errOwn):
		return hostPathState{Own: true}, err
	case c.Type == v1.HostPathUnset:
		return hostPathState{}, nil // the runtime reports what else is wrong with it
	}
	err = c.makeOfType()
	return hostPathState{Own: errors.Is(err, errOwn)}, err
}

// forget drops what was noted of a pod.
func (h *hostPath) forget(pod types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.checked, pod)
}

// hostPathTypes has the type that a path must be of, and its name in errors.
var hostPathTypes = map[v1.HostPathType]struct {
	is     v1.HostPathType
	called string
}{
	v1.HostPathDirectoryOrCreate: {v1.HostPathDirectory, "directory"},
	v1.HostPathDirectory:         {v1.HostPathDirectory, "directory"},
	v1.HostPathFileOrCreate:      {v1.HostPathFile, "file"},
	v1.HostPathFile:              {v1.HostPathFile, "file"},
	v1.HostPathSocket:            {v1.HostPathSocket, "socket file"},
	v1.HostPathCharDev:           {v1.HostPathCharDev, "character device"},
	v1.HostPathBlockDev:          {v1.HostPathBlockDev, "block device"},
}

// makeOfType checks that what is at the path is of the type, and makes it if the type says so and nothing is there.
func (c *hostPathCall) makeOfType() error {
	path, kind := c.Path, c.Type
	wanted, known := hostPathTypes[kind]
	if !known {
		return fmt.Errorf("%s is an invalid volume type", kind)
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if kind == v1.HostPathDirectoryOrCreate || kind == v1.HostPathFileOrCreate {
			return makeAt(c.Private, path, kind == v1.HostPathFileOrCreate)
		}
		err = fmt.Errorf("path %q does not exist", path)
	}
	if err != nil {
		return fmt.Errorf("hostPath type check failed, %s is not a %s, unable to determine its type: %w", path,
			wanted.called, err)
	}
	is, err := typeOf(info.Mode())
	if err != nil {
		return fmt.Errorf("hostPath type check failed, %s is not a %s, unable to determine its type: %w", path,
			wanted.called, err)
	}
	if is != wanted.is {
		return fmt.Errorf("hostPath type check failed: %s is not a %s, it's a %s", path, wanted.called, is)
	}
	return nil
}

func typeOf(mode fs.FileMode) (v1.HostPathType, error) {
	switch {
	case mode.IsDir():
		return v1.HostPathDirectory, nil
	case mode.IsRegular():
		return v1.HostPathFile, nil
	case mode&fs.ModeSocket != 0:
		return v1.HostPathSocket, nil
	case mode&fs.ModeCharDevice != 0:
		return v1.HostPathCharDev, nil
	case mode&fs.ModeDevice != 0:
		return v1.HostPathBlockDev, nil
	}
	return "", errors.New("only recognise file, directory, socket, block device and character device")
}

package up

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/internal/unixgrpc"
	"github.com/microlet/microlet/services/microlet/internal/supervisor"
)

// onDemand says when a service is started that does not always have something to do; nil for the others. A group with
// such a service gets its sockets, and is started always.
func (c *Config) onDemand(u process, id role.Identity) *supervisor.OnDemand {
	for _, s := range u.services {
		if s.OnDemand == nil {
			continue
		}
		return &supervisor.OnDemand{
			Listen: func() ([]net.Listener, error) { return c.listenFor(s, id) },
			Needed: func() bool {
				return len(u.services) > 1 || s.OnDemand.Needed != nil && s.OnDemand.Needed(c.Kubelet)
			},
		}
	}
	return nil
}

// listenFor opens the sockets of a service: its gRPC socket, as the service would, and those for others.
func (c *Config) listenFor(s service.Definition, id role.Identity) (all []net.Listener, err error) {
	defer func() {
		if err == nil {
			return
		}
		for _, l := range all {
			err = errors.Join(err, l.Close())
		}
		all = nil
	}()
	own, err := unixgrpc.ListenAs(c.Service.Socket(s.Role), 0o660, id.UID, role.GroupNode)
	if err != nil {
		return nil, err
	}
	all = append(all, own)
	if s.OnDemand.Sockets == nil {
		return all, nil
	}
	for _, socket := range s.OnDemand.Sockets(c.Kubelet) {
		l, err := socket.Listen()
		if err != nil {
			return all, err
		}
		all = append(all, l)
	}
	return all, nil
}

// onDemandRoles are the roles of the services that run on demand.
func (c *Config) onDemandRoles() []role.Role {
	var roles []role.Role
	for _, s := range c.Services {
		if s.OnDemand != nil {
			roles = append(roles, s.Role)
		}
	}
	return roles
}

// release frees what a process holds that is dead and does not end. The sockets that this process listens on for it are
// its successor's too.
func (c *Config) release(u process) error {
	var errs []error
	for _, s := range u.services {
		var kept []string
		if s.OnDemand != nil {
			kept = append(kept, filepath.Base(c.Service.Socket(s.Role)))
		}
		errs = append(errs, removeSockets(c.Service.RuntimeDir, s.Role, u.replica, kept...))
	}
	return errors.Join(errs...)
}

// makeServiceFolders makes the folders of root's that services write to, or have sockets in. Some services are started
// by something else, and have no right to make them.
func (c *Config) makeServiceFolders() error {
	for _, s := range c.Services {
		var folders []string
		if s.Folders != nil {
			folders = s.Folders(c.Kubelet)
		}
		if s.OnDemand != nil && s.OnDemand.Sockets != nil {
			for _, socket := range s.OnDemand.Sockets(c.Kubelet) {
				folders = append(folders, filepath.Dir(socket.Path))
			}
		}
		for _, folder := range folders {
			if err := service.MakeFolder(folder); err != nil {
				return fmt.Errorf("folder of %s: %w", s.Role, err)
			}
		}
	}
	return nil
}

package bus

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
)

// disconnectSubject is where the NATS server itself reports lost connections to its system account.
const disconnectSubject = "$SYS.ACCOUNT.*.DISCONNECT"

// disconnectWatch learns from the server which connections it lost. A kernel closes the connection of a
// process that dies at once, so this is the earliest that a death can be known of.
type disconnectWatch struct {
	nc *nats.Conn
}

// watchDisconnects calls notify for each service's connection that is lost, from one goroutine. The name of a
// connection counts only if it signed in with that role's key.
func (s *Server) watchDisconnects(
	key signer, roles map[string]role.Role, notify func(r role.Role, replica string),
) error {
	nc, err := nats.Connect("", nats.InProcessServer(s.ns), key.option(), nats.Name("system"), nats.NoReconnect())
	if err != nil {
		return fmt.Errorf("system connection: %w", err)
	}
	_, err = nc.Subscribe(disconnectSubject, func(m *nats.Msg) {
		var event server.DisconnectEventMsg
		if err := json.Unmarshal(m.Data, &event); err != nil {
			s.log.Warn("the event of a lost connection cannot be read", logkey.Err, err)
			return
		}
		name, replica, ok := strings.Cut(event.Client.Name, ".")
		if !ok || roles[event.Client.User] != role.Role(name) {
			return
		}
		// The name is the client's own choice, and becomes a part of a subject.
		if err := subject.ValidToken(replica); err != nil {
			s.log.Warn("a service gave its connection a name that is no replica's", logkey.Service, name,
				logkey.Err, err)
			return
		}
		s.log.Debug("lost the connection of a service", logkey.Service, name, logkey.Replica, replica,
			logkey.Reason, event.Reason)
		notify(role.Role(name), replica)
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		nc.Close()
		return fmt.Errorf("subscribe to %s: %w", disconnectSubject, err)
	}
	s.disconnects = &disconnectWatch{nc: nc}
	return nil
}

func (g *disconnectWatch) close() {
	if g != nil {
		g.nc.Close()
	}
}

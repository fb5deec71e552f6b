// Command watch-pods prints what podsync reports of each pod of the node, as it changes. Start the agent with
// --bus-view-address=127.0.0.1:4222, and this program as root: watch-pods [RUNTIME-FOLDER [ADDRESS]].
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	busv1 "github.com/microlet/microlet/proto/microlet/bus/v1"
	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
	"github.com/microlet/microlet/proto/subject"
)

func main() {
	args := append(os.Args[1:], "/run/microlet", "127.0.0.1:4222")[:2]
	key, err := nats.NkeyOptionFromSeed(filepath.Join(args[0], "nkeys", "viewer.seed"))
	if err != nil {
		log.Fatal(err)
	}
	bus, err := nats.Connect("tls://"+args[1], key, nats.RootCAs(filepath.Join(args[0], "sock", "bus", "view.crt")),
		nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := bus.Subscribe(subject.Entries(subject.PodStatus), func(m *nats.Msg) {
		var entry busv1.Entry
		var status podsyncv1.PodStatus
		_, uid, ok := subject.ParseEntry(m.Subject)
		if !ok || subject.IsEpochKey(uid) || proto.Unmarshal(m.Data, &entry) != nil || len(entry.GetValue()) == 0 ||
			proto.Unmarshal(entry.GetValue(), &status) != nil {
			return // a mark of a writer, or the end of a pod
		}
		fmt.Println(uid, "sandbox", status.GetSandboxId(), "addresses", status.GetPodIps(), "containers",
			len(status.GetContainers()))
	}); err != nil {
		log.Fatal(err)
	}
	runtime.Goexit() // the subscription goes on
}

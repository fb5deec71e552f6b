// Command device-plugin is a device plugin that does what a test asks for; see package deviceplugin.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/microlet/microlet/compose/e2e/internal/deviceplugin"
)

func main() {
	var o deviceplugin.Options
	flag.StringVar(&o.Resource, "resource", "", "the extended `resource` of the devices, as example.com/device")
	flag.StringVar(&o.Socket, "socket", "", "`path` of the socket to serve")
	flag.StringVar(&o.Kubelet, "kubelet", "", "`path` of the node agent's socket, at which the plugin registers")
	flag.StringVar(&o.Registry, "registry", "", "in place of -kubelet, `path` of a socket in the node agent's folder "+
		"plugins_registry; it may be that of -socket")
	flag.StringVar(&o.Plan, "plan", "", "`file` of the plan, in JSON, which is read again all the time")
	flag.StringVar(&o.Calls, "calls", "", "`file` to which calls are written (default: none)")
	flag.StringVar(&o.Files, "files", "", "`folder` of the files that containers get with their devices (default: none)")
	flag.BoolVar(&o.Once, "once", false, "do not register again when the node agent has another socket")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := deviceplugin.Run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "device-plugin:", err)
		os.Exit(1)
	}
}

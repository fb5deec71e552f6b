// Command redis-ping is a probe plugin that asks a Redis server whether it can serve, with PING over
// RESP. It is the example of docs/plugins.md.
package main

import "github.com/microlet/microlet/services/prober/plugin"

func main() { plugin.Serve(ping) }

// Package podutil answers questions about a Pod object that more than one service asks: what kind of pod it is, which
// containers it has, and what class of service it gets.
//
// Its input is the object alone; it keeps nothing and asks nobody. Each rule is the kubelet's.
package podutil

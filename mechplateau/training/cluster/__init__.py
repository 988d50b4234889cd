"""Jobs on the machines of a Ray cluster, with the optional extra `ray`.

on_ray      the executor, on the driver's machine
joining     finding, joining or starting a cluster
tries       which jobs are started again
node        what happens on a node
desk        where nodes report and get orders
"""
